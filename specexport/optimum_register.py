"""Installed as optimum/commands/register/register_specexport.py: the place where optimum-cli looks for plug-ins."""

from specexport.optimum_plugin import REGISTER_COMMANDS

__all__ = ["REGISTER_COMMANDS"]
