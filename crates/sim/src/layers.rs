//! The layers of all simulated nodes, by a handle for each.

use server::stack::Layers;
use std::sync::LazyLock;

/// The layers of every shard of every node. Nodes share the handles, and no instances.
pub static LAYERS: LazyLock<Layers> = LazyLock::new(Layers::default);
