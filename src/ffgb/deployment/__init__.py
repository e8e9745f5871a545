"""Training between sites: the programs that a server and its sites run."""
