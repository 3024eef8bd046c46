"""What people prefer, by day, category, source and group of annotators."""
