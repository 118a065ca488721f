"""Instance groups: desired state, a pure plan, and what carries it out."""
