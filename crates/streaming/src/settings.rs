//! The settings of streaming that can be changed while the node runs.

use rt::Throttle;
use std::cell::Cell;
use std::sync::Arc;

/// How a node streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamSettings {
    /// Whether tablets are streamed as whole files (`enable_file_stream`). Otherwise, and if their
    /// files cannot be used elsewhere, they are streamed as mutations.
    pub whole_files: bool,
    /// The limit of all bytes that the node streams, per second
    /// (`stream_io_throughput_mb_per_sec`). 0: no limit.
    pub bytes_per_second: u64,
}

impl Default for StreamSettings {
    fn default() -> Self {
        StreamSettings { whole_files: true, bytes_per_second: 0 }
    }
}

/// The settings of a shard.
pub(crate) struct Settings {
    pub whole_files: Cell<bool>,
    /// Shared by all shards.
    pub throttle: Arc<Throttle>,
}

impl Settings {
    pub fn set(&self, settings: StreamSettings) {
        self.whole_files.set(settings.whole_files);
        self.throttle.set(settings.bytes_per_second);
    }
}
