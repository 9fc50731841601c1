"""What is generated from the typed model: the CRD, the editors' JSON schema and the reference page."""
