//! Maps with one fixed hasher, so that the same inputs give the same iteration order in every run.
//!
//! The hasher is fast and not resistant to chosen keys: never key a map by bytes that a client may choose without bound
//! unless the map itself is bounded.

/// The hasher of every map in the product: `rustc-hash`, seedless.
pub type FastHasher = rustc_hash::FxHasher;

/// Builds [`FastHasher`]s; deterministic.
pub type FastBuildHasher = rustc_hash::FxBuildHasher;

/// `hashbrown::HashMap` with the fixed hasher. Make one with `HashMap::default()`.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FastBuildHasher>;

/// `hashbrown::HashSet` with the fixed hasher. Make one with `HashSet::default()`.
pub type HashSet<T> = hashbrown::HashSet<T, FastBuildHasher>;
