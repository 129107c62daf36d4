"""Devices: how much memory, how fast it is read, how fast they multiply."""

from kvhouse.devices.device import Device
from kvhouse.devices.table import LOCAL, get, listed, names

__all__ = ["LOCAL", "Device", "get", "listed", "names"]
