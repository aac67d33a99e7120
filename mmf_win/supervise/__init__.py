"""Running a child process well. Knows neither torch nor MMF."""
