"""Private training: where the privacy barrier stands, the loop, checkpoints, recipes."""
