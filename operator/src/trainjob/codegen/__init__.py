"""Generators of files: from the typed model, the table of permissions and the charts of the dashboards.

For developers: never imported at run time, and the dashboards need a package of the group `dev`.
"""
