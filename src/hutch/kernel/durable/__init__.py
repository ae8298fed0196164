"""Parts of suspended runs: sealed copies, and their shares of the memory."""
