"""SGLang's own DSPARK worker with our planner in it; see docs/bridge.md."""
