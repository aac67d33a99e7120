"""The only room that knows the inside of MMF, and the only one that may import torch or mmf."""
