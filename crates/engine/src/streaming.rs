//! A tablet that moves to another node as whole sstable files, which are not parsed.
//!
//! The source flushes the tablet and pins its sstables by hard links
//! ([`Engine::pin_tablet`](crate::Engine::pin_tablet)). Compaction continues meanwhile. The
//! receiver asks for the files as one sequence of bytes, in the order of a [`StreamLayout`], so
//! that small files share requests. It checks every byte against the files' own checksums while it
//! writes them ([`Incoming`]). When all have arrived, the sstables become part of the tablet in one
//! durable step ([`Engine::attach_streamed`](crate::Engine::attach_streamed)).
//!
//! A tablet can be streamed as mutations instead: its fragments come from an ordinary reader of the
//! source, and the receiver writes sstables of its own ([`IncomingMutations`]). That is slower, but
//! it needs no common file format: for sstables of other databases, or if file streaming is off.
//!
//! All files of a session are in directories of its own, below `streaming` in the directory of the
//! table: `out-<session>` on the source, `in-<session>` on the receiver. They outlive a restart, so
//! a repeated attempt continues. They are removed when the session has ended
//! ([`Engine::remove_session`](crate::Engine::remove_session)): nothing else refers to them.
//!
//! The rows that are often read on the source are then read into the receiver's row cache
//! ([`Engine::read_in`](crate::Engine::read_in)).
//!
//! Sstables keep their generations, which are unique in the cluster. So what a tablet already has
//! is not attached again.

mod arrived;
mod attach;
mod hot_rows;
mod incoming;
mod incoming_mutations;
mod layout;
mod outgoing;
mod session_dir;

pub use arrived::ArrivedSource;
pub use attach::{AttachedFiles, StreamTarget};
pub use incoming::Incoming;
pub use incoming_mutations::IncomingMutations;
pub use layout::{Span, StreamLayout, StreamedFile, StreamedSstable};
pub use outgoing::{Pinned, TabletSize};
pub use session_dir::Direction;

use crate::engine::Engine;
use crate::metrics::{Counters, add};

/// Work for streamed tablets. While there is some, maintenance requests its share of the shard's
/// time, within what the governor allows.
pub struct Streaming(Counters);

impl Engine {
    /// Work for a streamed tablet begins. It ends when the result is dropped.
    pub fn begin_streaming(&self) -> Streaming {
        add(&self.counters().streams_running, 1);
        self.compactions().wake_share();
        Streaming(self.counters().clone())
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.streams_running.set(self.0.streams_running.get() - 1);
    }
}
