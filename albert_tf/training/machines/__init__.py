"""Where a run happens: strategies, workers, the faster precision."""
