"""Models that MMF has not, by which it trains and predicts as by its own; named as its ``model``."""
