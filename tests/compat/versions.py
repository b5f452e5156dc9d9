"""The released versions that the current code stays compatible with, by commit. README.md lists their numbers."""

VERSIONS = {"0.1.0": "843d254", "0.2.0": "b2eedd9", "0.3.0": "739a768", "0.4.0": "94d6101", "0.5.0": "d3035f0"}
