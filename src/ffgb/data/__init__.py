"""Data sets by name or from site files, and how their rows are dealt out to clients."""

from ffgb.data.dataset import Dataset
from ffgb.data.files import load_sites, read_points
from ffgb.data.partition import partition
from ffgb.data.sources import SOURCES, Listing, Source, available, listing, load, verify

__all__ = [
    "SOURCES",
    "Dataset",
    "Listing",
    "Source",
    "available",
    "listing",
    "load",
    "load_sites",
    "partition",
    "read_points",
    "verify",
]
