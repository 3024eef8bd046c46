"""From a confirmed change to a candidate: when to retrain, on what, and by which strategy."""
