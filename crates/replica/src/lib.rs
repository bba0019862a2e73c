//! One shard's answers: requests, permits, pages.
