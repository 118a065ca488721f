"""Where machines come from: one protocol, one module for every source.

``model`` holds what all of them speak; recovery and provisioning know nothing
else of a provider.
"""
