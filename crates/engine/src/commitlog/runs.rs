//! The runs of earlier processes: listing them, and removing them when they are no longer needed.

use super::error::LogError;
use super::manifest::{self, Manifest, segment_of_name};
use super::position::{Position, segment_id, sequence_of, shard_of_segment};
use super::synced;
use model::HostId;
use rt::ShardId;
use rt::fs;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Earlier runs of all shards, including shards that no longer exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldLogs {
    /// By shard, then by age.
    pub runs: Vec<OldRun>,
}

/// One earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRun {
    /// The shard that wrote it. It may no longer exist.
    pub shard: ShardId,
    /// The id of its first segment.
    pub run: u64,
    /// Its directory.
    pub dir: PathBuf,
}

impl OldLogs {
    /// Whether there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The part that shard `shard` of `count` shards replays, so that they work in parallel. The
    /// log of each shard is given to one of them entirely.
    pub fn part(&self, shard: ShardId, count: u16) -> OldLogs {
        let runs = self.runs.iter().filter(|run| run.shard.0 % count.max(1) == shard.0);
        OldLogs { runs: runs.cloned().collect() }
    }
}

/// The name of a run, for the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedRun {
    /// The shard that writes it.
    pub shard: u16,
    /// The id of its first segment.
    pub run: u64,
}

/// A run that was ended in order, as its manifest has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRun {
    /// The id of its first segment.
    pub run: u64,
    /// The segments that replay needs.
    pub segments: Vec<u64>,
    /// The end of the run.
    pub end: Position,
}

/// How the runs below `root` ended, in the order of their ids. `None` if one was not ended in
/// order, or is of another node than `host`.
pub async fn ended(root: &Path, host: HostId) -> Result<Option<Vec<EndedRun>>, LogError> {
    let mut ended = Vec::new();
    for dir in runs_in(root).await? {
        match Manifest::read(&dir).await? {
            Some(manifest) if !manifest.closed || !manifest.is_of(Some(host)) => return Ok(None),
            Some(Manifest { run, segments, synced, .. }) => ended.push(EndedRun { run, segments, end: synced }),
            // Retired, or never begun.
            None => {}
        }
    }
    ended.sort_by_key(|ended| ended.run);
    Ok(Some(ended))
}

/// The missing files below `root`, of runs of the node `host` that were complete on the device and
/// not retired. Replay reports segments that are missing from a run with a manifest.
pub async fn missing(root: &Path, runs: &[LoggedRun], host: HostId) -> Result<Vec<String>, LogError> {
    let mut missing = Vec::new();
    for &LoggedRun { shard, run } in runs {
        let shard_dir = root.join(shard.to_string());
        let dir = run_dir(&shard_dir, run);
        let mut lost = None;
        for dir in [root, &shard_dir, &dir] {
            if lost.is_none() && !is_there(dir).await? {
                lost = Some(format!("{} is missing", dir.display()));
            }
        }
        if let Some(lost) = lost {
            missing.push(lost);
            continue;
        }
        let file = |name: &str| dir.join(name).display().to_string();
        match Manifest::read(&dir).await {
            Ok(None) => missing.push(format!("{} is missing", file(manifest::NAME))),
            Ok(Some(manifest)) if !manifest.closed && synced::read(&dir, run, Some(host)).await?.is_none() => {
                missing.push(format!(
                    "{} is missing, damaged or of another node: the end of the log may be cut off",
                    file(synced::NAME)
                ));
            }
            // Replay reports damage and files of another node with their place.
            _ => {}
        }
    }
    missing.dedup();
    Ok(missing)
}

async fn is_there(path: &Path) -> Result<bool, LogError> {
    match fs::metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(LogError::io(path)(error)),
    }
}

/// The directories of all runs below `root`.
pub async fn runs_in(root: &Path) -> Result<Vec<PathBuf>, LogError> {
    let mut runs = Vec::new();
    for (_, dir) in shard_dirs(root).await? {
        for entry in fs::read_dir(&dir).await.map_err(LogError::io(&dir))? {
            runs.extend(run_of_name(&entry.name).map(|_| dir.join(&entry.name)));
        }
    }
    Ok(runs)
}

/// The directory of a run within its shard's.
pub(super) fn run_dir(shard_dir: &Path, run: u64) -> PathBuf {
    shard_dir.join(format!("run-{run:016x}"))
}

fn run_of_name(name: &str) -> Option<u64> {
    let hex = name.strip_prefix("run-")?;
    if hex.len() != 16 { None } else { u64::from_str_radix(hex, 16).ok() }
}

/// Lists the runs below `root` (`commitlog`), and removes the rests of retired and incompletely
/// created ones. Call it before any shard opens its log.
pub async fn find_old(root: &Path) -> Result<OldLogs, LogError> {
    let mut runs = Vec::new();
    for (shard, dir) in shard_dirs(root).await? {
        for entry in fs::read_dir(&dir).await.map_err(LogError::io(&dir))? {
            let Some(run) = run_of_name(&entry.name) else { continue };
            let run_dir = dir.join(&entry.name);
            let files = fs::read_dir(&run_dir).await.map_err(LogError::io(&run_dir))?;
            if needs_replay(&files) {
                runs.push(OldRun { shard, run, dir: run_dir });
            } else {
                remove_run(&run_dir).await.map_err(LogError::io(&run_dir))?;
            }
        }
    }
    runs.sort_by_key(|run| (run.shard, run.run));
    Ok(OldLogs { runs })
}

/// Lists the runs of earlier processes below `root`, and changes nothing. Shards below `running`
/// have begun a run of this process: their last run.
pub async fn old_runs(root: &Path, running: u16) -> Result<OldLogs, LogError> {
    let mut runs = Vec::new();
    for (shard, dir) in shard_dirs(root).await? {
        let entries = fs::read_dir(&dir).await.map_err(LogError::io(&dir))?;
        let mut own: Vec<u64> = entries.iter().filter_map(|entry| run_of_name(&entry.name)).collect();
        own.sort();
        if shard.0 < running {
            own.pop();
        }
        for run in own {
            let dir = run_dir(&dir, run);
            let files = fs::read_dir(&dir).await.map_err(LogError::io(&dir))?;
            if needs_replay(&files) {
                runs.push(OldRun { shard, run, dir });
            }
        }
    }
    runs.sort_by_key(|run| (run.shard, run.run));
    Ok(OldLogs { runs })
}

/// Whether a run with these files is neither retired nor incompletely created.
fn needs_replay(files: &[fs::DirEntry]) -> bool {
    let has = |name: &str| files.iter().any(|file| file.name == name);
    let has_segments = files.iter().any(|file| segment_of_name(&file.name).is_some());
    // Segments without a manifest are a loss: replay reports it.
    has(manifest::NAME) || (has_segments && !has(manifest::RETIRED))
}

/// For each shard with a directory below `root`, a position after all its records so far and
/// before all records of later runs.
pub async fn ends(root: &Path) -> Result<Vec<(ShardId, Position)>, LogError> {
    let mut ends = Vec::new();
    for (shard, dir) in shard_dirs(root).await? {
        let next = segment_id(shard, highest_sequence(&dir).await? + 1);
        ends.push((shard, Position { segment: next, offset: 0 }));
    }
    Ok(ends)
}

/// For each shard with a directory below `root`, positions before and after all records of
/// earlier processes. Shards below `running` have begun a run of this process: their last run.
pub async fn old_spans(root: &Path, running: u16) -> Result<Vec<(ShardId, Position, Position)>, LogError> {
    let mut spans = Vec::new();
    for (shard, dir) in shard_dirs(root).await? {
        let end = match shard.0 < running {
            true => {
                let entries = fs::read_dir(&dir).await.map_err(LogError::io(&dir))?;
                entries.iter().filter_map(|entry| run_of_name(&entry.name)).max()
            }
            false => Some(segment_id(shard, highest_sequence(&dir).await? + 1)),
        };
        let at = |segment| Position { segment, offset: 0 };
        spans.extend(end.map(|end| (shard, at(segment_id(shard, 0)), at(end))));
    }
    Ok(spans)
}

async fn shard_dirs(root: &Path) -> Result<Vec<(ShardId, PathBuf)>, LogError> {
    let entries = match fs::read_dir(root).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LogError::io(root)(error)),
    };
    let mut shards = Vec::new();
    for entry in entries {
        let Ok(shard) = entry.name.parse() else { continue };
        let dir = root.join(&entry.name);
        if !entry.is_dir {
            // This may be a link to a disk that is not mounted: its log must not be ignored.
            let error = fs::read_dir(&dir).await.err();
            return Err(LogError::io(&dir)(error.unwrap_or(io::ErrorKind::NotADirectory.into())));
        }
        shards.push((ShardId(shard), dir));
    }
    Ok(shards)
}

/// Whether replay needs a file of a run, according to its manifest.
pub(super) fn is_needed(manifest: &Manifest, name: &str) -> bool {
    name == manifest::NAME || segment_of_name(name).is_some_and(|id| manifest.segments.contains(&id))
}

/// The highest sequence number of all segments in the shard's directory; 0 for none.
pub(super) async fn highest_sequence(shard_dir: &Path) -> Result<u64, LogError> {
    let mut highest = 0;
    for entry in fs::read_dir(shard_dir).await.map_err(LogError::io(shard_dir))? {
        let Some(run) = run_of_name(&entry.name) else { continue };
        highest = highest.max(sequence_of(run));
        let dir = shard_dir.join(&entry.name);
        for file in fs::read_dir(&dir).await.map_err(LogError::io(&dir))? {
            let hex = file.name.rsplit_once('-').map(|(_, hex)| hex).unwrap_or_default();
            highest = highest.max(u64::from_str_radix(hex, 16).map(sequence_of).unwrap_or(0));
        }
        if let Ok(Some(manifest)) = Manifest::read(&dir).await {
            let named = manifest.segments.iter().copied().chain([manifest.synced.segment]);
            highest = named.map(sequence_of).fold(highest, u64::max);
        }
    }
    Ok(highest)
}

/// Removes runs whose contents are durable elsewhere. Call it when every replayed record is in a
/// sealed sstable or in the new log, durably.
pub async fn retire(logs: &OldLogs) -> Result<(), LogError> {
    for run in &logs.runs {
        debug_assert_eq!(shard_of_segment(run.run), run.shard);
        if !fs::is_there(&run.dir).await.map_err(LogError::io(&run.dir))? {
            // An earlier attempt removed it, and failed at a later run.
            continue;
        }
        let failed = || LogError::io(&run.dir);
        let (named, retired) = (run.dir.join(manifest::NAME), run.dir.join(manifest::RETIRED));
        match fs::rename(&named, &retired).await {
            // Its manifest was lost, and that was ignored.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::write_durably(&retired, b"").await.map_err(failed())?;
            }
            other => other.map_err(failed())?,
        }
        fs::sync_dir(&run.dir).await.map_err(failed())?;
        remove_run(&run.dir).await.map_err(failed())?;
    }
    Ok(())
}

/// Removes the directory of a run without a manifest. The file that marks it as retired is
/// removed last.
async fn remove_run(dir: &Path) -> io::Result<()> {
    for file in fs::read_dir(dir).await? {
        if file.name != manifest::RETIRED && !file.is_dir {
            fs::remove_file(&dir.join(&file.name)).await?;
        }
    }
    fs::sync_dir(dir).await?;
    fs::remove_dir_all(dir).await?;
    let Some(shard_dir) = dir.parent() else { return Ok(()) };
    fs::sync_dir(shard_dir).await?;
    if fs::read_dir(shard_dir).await?.is_empty()
        && let Some(root) = shard_dir.parent()
    {
        fs::remove_dir_all(shard_dir).await?;
        fs::sync_dir(root).await?;
    }
    Ok(())
}
