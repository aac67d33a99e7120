"""Protected archives and their verified extraction. Knows no memes."""
