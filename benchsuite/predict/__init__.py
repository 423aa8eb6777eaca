"""The model of what was not measured: closed forms, what is fitted from a store, and the planner over both."""
