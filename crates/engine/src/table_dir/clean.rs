//! Completes interrupted file operations in the directory of a table.

use super::replay_filters::ReplayFilters;
use super::{foreign_files, is_truncated, names_in, remove_all, sealed_places};
use crate::config::EngineConfig;
use crate::deletion_log::{self, Finished, Incomplete, QUARANTINE};
use crate::error::EngineError;
use rt::ShardId;
use sstable::SstablePath;
use std::path::Path;

/// The content of a table's directory after interrupted operations were finished.
#[derive(Default)]
pub(crate) struct CleanDirectory {
    /// The sealed sstables that were not truncated.
    pub places: Vec<SstablePath>,
    /// The sealed sstables that cannot be opened, because they have lost their table of contents.
    pub incomplete: Vec<Incomplete>,
    /// By the shard that wrote them.
    pub filters: Vec<(ShardId, ReplayFilters)>,
}

/// Finishes the operations that the last run left undone in a table's directory, and logs files
/// of unknown formats. Only one shard may do this, and only while no other uses the directory.
pub(crate) async fn finish_interrupted(dir: &Path, config: &EngineConfig) -> Result<CleanDirectory, EngineError> {
    let mut names = names_in(dir).await?;
    if names.is_empty() {
        return Ok(CleanDirectory::default());
    }
    for (format, files) in foreign_files(&names) {
        tracing::warn!(dir = %dir.display(), files = files.len(), first = files[0], format,
            "a table's directory has files of a format that this release cannot read: their data is not served");
    }
    // A killed process may leave names that were never synced. Replay skips records that a sealed
    // sstable covers, so the name of the sstable must survive a power loss after the log is
    // retired.
    rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
    let finished = deletion_log::finish_pending(dir).await?;
    if !finished.deleted.is_empty() || !finished.orphans.is_empty() {
        let unsealed = finished.orphans.join(",");
        tracing::info!(dir = %dir.display(), removed = finished.deleted.len(), unsealed,
            "completed file operations that the last run left unfinished");
    }
    for generation in &finished.rebuilt {
        tracing::warn!(dir = %dir.display(), generation,
            "TOC.txt of an sstable was missing: rebuilt from Checksums.db, no data is lost");
    }
    for file in &finished.quarantined {
        tracing::warn!(file = %file.display(),
            "file of an sstable of another database without TOC.txt: moved to quarantine, its rows are not served");
    }
    if finished.in_quarantine > 0 {
        tracing::warn!(dir = %dir.join(QUARANTINE).display(), files = finished.in_quarantine,
            "files are in quarantine, and their rows are not served: restore their sstables from a snapshot, or remove the files");
    }
    if finished != Finished::default() {
        names = names_in(dir).await?;
    }
    let filters = ReplayFilters::read_all(dir, &names, config.host_id).await?;
    let (mut void, sound): (Vec<_>, Vec<_>) =
        sealed_places(dir, &names).into_iter().partition(|place| is_truncated(&filters, place));
    let mut incomplete = finished.incomplete;
    void.extend(incomplete.extract_if(.., |one| is_truncated(&filters, &one.place)).map(|one| one.place));
    if !void.is_empty() {
        remove_all(dir, &void).await?;
    }
    Ok(CleanDirectory { places: sound, incomplete, filters })
}
