"""What fires when: votes into feedback, pairs into learning, drift into retraining, killed runs
into retries.
"""
