"""Programs of the chart's hook pods: update the CRD, never downgrade it, and check an installation."""
