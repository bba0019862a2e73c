//! Maps with one fixed hasher, so that the same inputs give the same iteration order in every run.
//!
//! The hasher is fast, and not resistant to chosen keys. Never use bytes that a client can choose
//! freely as keys, unless the size of the map is bounded.

/// The hasher of every map in the product: `rustc-hash`, seedless.
pub type FastHasher = rustc_hash::FxHasher;

/// Builds [`FastHasher`]s; deterministic.
pub type FastBuildHasher = rustc_hash::FxBuildHasher;

/// A place of a [`HashMap`].
pub use hashbrown::hash_map::Entry;

/// `hashbrown::HashMap` with the fixed hasher. Make one with `HashMap::default()`.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FastBuildHasher>;

/// `hashbrown::HashSet` with the fixed hasher. Make one with `HashSet::default()`.
pub type HashSet<T> = hashbrown::HashSet<T, FastBuildHasher>;
