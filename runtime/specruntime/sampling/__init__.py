"""How an answer chooses its tokens: parameters, filters, keyed noise, and the sampler that joins them."""
