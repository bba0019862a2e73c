//! The settings of hints.

use rt::time::Duration;
use std::path::PathBuf;

/// The nodes that get hints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptFor {
    /// All nodes.
    All,
    /// None. Hints that were kept before are still replayed.
    NoNode,
    /// The nodes in these datacenters.
    Datacenters(Vec<String>),
}

/// The settings that an operator can change while the node runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HintsSettings {
    /// `hinted_handoff_enabled`.
    pub kept_for: KeptFor,
    /// `max_hint_window_in_ms`: nodes that are down for longer get no new hints.
    pub window: Duration,
    /// `hinted_handoff_throttle_in_kb`: the maximum bytes per second of replay; 0: no limit.
    pub throttle: u64,
}

impl Default for HintsSettings {
    fn default() -> Self {
        HintsSettings { kept_for: KeptFor::All, window: Duration::from_secs(3 * 3600), throttle: 8 << 20 }
    }
}

/// The configuration of a shard's hints.
#[derive(Clone, Debug)]
pub struct HintsConfig {
    /// The hint directory: it has a subdirectory for each shard.
    pub directory: PathBuf,
    /// The directory for the notes: manifests and missed writes. Must not be below `directory`.
    pub notes: PathBuf,
    /// The settings that can be changed later.
    pub settings: HintsSettings,
    /// The most bytes on disk of this shard's hints.
    pub max_bytes: u64,
    /// The most bytes of one file.
    pub file_bytes: u64,
    /// How often stored hints are synced, and replay is tried.
    pub period: Duration,
}

impl HintsConfig {
    /// ScyllaDB's limits, for a shard with at most `max_bytes` of hints on disk.
    pub fn new(directory: PathBuf, notes: PathBuf, max_bytes: u64) -> HintsConfig {
        HintsConfig {
            directory,
            notes,
            settings: HintsSettings::default(),
            max_bytes,
            file_bytes: 32 << 20,
            period: Duration::from_secs(10),
        }
    }
}
