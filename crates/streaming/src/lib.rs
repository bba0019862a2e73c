//! Moves tablets between nodes as whole sstable files.
//!
//! The leader's migration driver asks the shard of each pending replica to receive its tablet
//! ([`TabletStreamer`]). That shard asks the sources for a description of their files, pulls the
//! bytes through a window of requests, and makes all sstables part of the tablet in one step
//! (`receiver`). A source pins its files and answers the requests (`source`). What happens on disk
//! is in [`engine::streaming`].
//!
//! Every request names the session of the tablet's stage. A node answers only while its metadata
//! have this session. A receiver holds the metadata while the sstables become part of the tablet,
//! so the barrier after the session's end waits for that ([`cluster::topology::barrier`]). A
//! request of an abandoned attempt therefore has no effect, however late it arrives. When the
//! session has ended, its work is cancelled and its files are removed (`sessions`).
//!
//! An attempt that fails is repeated by the leader. It continues where the last one ended: the
//! receiver keeps what has arrived, in memory while it runs, and on disk over a restart.
//!
//! Reading order: `message`, `source`, `receiver`, `sessions`, `streamer`, `metrics`.

mod message;
mod metrics;
mod receiver;
mod sessions;
mod source;
mod streamer;

pub use metrics::StreamMetrics;
pub use sessions::{StreamService, start};
pub use streamer::TabletStreamer;
