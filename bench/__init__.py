"""How fast Hutch is and how much memory it takes, every figure beside a baseline measured in the same run."""
