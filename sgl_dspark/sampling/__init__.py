"""The laws tokens are drawn from: target warping, block sampling, verification, and the oracle that proves them."""
