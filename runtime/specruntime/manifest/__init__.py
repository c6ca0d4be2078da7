"""The schema of `manifest.json`, and everything that is checked before an engine sees a bundle."""
