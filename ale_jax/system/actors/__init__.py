"""The Ray actors that play episodes, and the cluster that they live on."""
