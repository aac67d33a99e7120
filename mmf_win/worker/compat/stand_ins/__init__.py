"""What MMF imports here instead of packages that are gone, were never needed, or download by themselves."""
