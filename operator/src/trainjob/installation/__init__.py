"""What the chart's own pods do: bring the CRD up to date, never back, and check an installation."""
