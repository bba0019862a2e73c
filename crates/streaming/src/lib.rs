//! Moves tablets between nodes: as whole sstable files, or else as mutations.
//!
//! The leader's migration driver asks the shard of each pending replica to receive its tablet
//! ([`TabletStreamer`]). That shard asks the sources for a description of their files, and pulls
//! the bytes through a window of requests. It makes all sstables part of the tablet in one step
//! (`receiver`). A source pins its files and answers the requests (`source`). What happens on disk
//! is in [`engine::streaming`].
//!
//! Every request names the session of the tablet's stage. A node answers only while its metadata
//! has this session. A receiver holds the metadata while the sstables become part of the tablet,
//! so the barrier after the session's end waits for that ([`cluster::topology::barrier`]). A
//! request of an abandoned attempt therefore has no effect, however late it arrives. When the
//! session has ended, its work is cancelled and its files are removed (`sessions`).
//!
//! A tablet is streamed as mutations if a source has files that only it can use, or if file
//! streaming is off. The source reads fragments (`mutation_source`), and the receiver writes them
//! into sstables of its own (`mutation_receiver`). Sessions and the end are the same.
//!
//! When a tablet has arrived, the receiver reads in the rows that the sources read often
//! (`hot_rows`). Then the leader continues, and the receiver gets reads.
//!
//! An attempt that fails is repeated by the leader. It continues where the last one ended: the
//! receiver keeps what has arrived, in memory while it runs, and on disk across a restart.
//!
//! Reading order: `message`, `source`, `receiver`, `mutation_page`, `mutation_source`,
//! `mutation_receiver`, `hot_rows`, `sessions`, `streamer`, `settings`, `progress`, `metrics`.

mod hot_rows;
mod message;
mod metrics;
mod mutation_page;
mod mutation_receiver;
mod mutation_source;
mod progress;
mod receiver;
mod sessions;
mod settings;
mod source;
mod streamer;

pub use metrics::StreamMetrics;
pub use progress::StreamProgress;
pub use sessions::{StreamService, start};
pub use settings::StreamSettings;
pub use streamer::TabletStreamer;
