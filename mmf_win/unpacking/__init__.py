"""From an archive to a folder of verified files, all of them or none. Knows no memes."""
