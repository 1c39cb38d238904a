"""The study of DistributedDataParallel: models and data, the rank that trains, the driver, and its report."""
