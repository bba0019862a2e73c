//! The lists of sstables: which sealed sstables the directory of a table must have.
//!
//! An sstable whose files were all removed leaves no trace. So each shard lists its sstables of a
//! table in the small file `sstables-<shard>` in the table's directory. The file is replaced
//! durably. A start compares the lists with the directory.
//!
//! A list is a lower bound after any crash. An sstable is listed after it is sealed on the device.
//! It is removed from the list, durably, before its first file is removed. Sstables that no list
//! names are served like others: a crash came between the seal and the list, or an operator or an
//! earlier release put them there.

use super::is_truncated;
use super::replay_filters::ReplayFilters;
use crate::error::EngineError;
use crate::files::sealed::{self, Unusable};
use crate::files::{FileOwner, read_owned};
use model::HostId;
use rt::ShardId;
use serde::{Deserialize, Serialize};
use sstable::{Component, SstablePath};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

const KIND: &str = "sstables";
const FORMAT: u32 = 1;
const PREFIX: &str = "sstables-";

/// The name of an sstable in a list: `<version>-<generation>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ListedName(String);

impl ListedName {
    /// The name of an sstable.
    pub fn of(place: &SstablePath) -> ListedName {
        ListedName(format!("{}-{}", place.version.name(), place.generation))
    }

    /// Where the sstable is in a directory. `None` if the name is not one of an sstable.
    pub fn place(&self, dir: &Path) -> Option<SstablePath> {
        let toc = format!("{}-big-{}", self.0, Component::Toc.name());
        SstablePath::parse_name(dir, &toc).map(|(place, _)| place)
    }
}

/// The names in a list.
pub(crate) type ListedNames = BTreeSet<ListedName>;

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    sstables: ListedNames,
    /// The node that wrote it. The sstables of another node are not missing here.
    owner: FileOwner,
}

/// The lists in the directory of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct SstableLists {
    /// By shard. The shard may no longer exist.
    lists: Vec<(ShardId, ListedNames)>,
    /// Whether a list could not be used, so that other sstables may have been listed.
    pub is_any_unusable: bool,
}

impl SstableLists {
    /// Reads all lists of the node `host` in a table's directory. `names` are the files in it. A
    /// list that cannot be used is logged and moved aside: nothing is known of its sstables.
    pub async fn read_all(dir: &Path, names: &[String], host: HostId) -> Result<SstableLists, EngineError> {
        let mut all = SstableLists::default();
        for name in names {
            let Some(shard) = shard_of_name(name) else { continue };
            let path = dir.join(name);
            match read_at(&path, host).await.map_err(EngineError::io(&path))? {
                Ok(listed) => all.lists.push((shard, listed)),
                Err(Unusable { is_there: false, .. }) => {}
                Err(Unusable { why, .. }) => {
                    all.is_any_unusable = true;
                    let aside = dir.join(format!("{name}.unusable-{}", rt::time::wall_micros() / 1000));
                    tracing::error!(file = %path.display(), why, to = %aside.display(),
                        "a list of sstables cannot be used and is moved aside: this start does not detect if sstables of it are missing");
                    rt::fs::rename(&path, &aside).await.map_err(EngineError::io(&path))?;
                    rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
                }
            }
        }
        Ok(all)
    }

    /// The list of a shard; empty if it has none.
    pub fn of(&self, shard: ShardId) -> ListedNames {
        self.lists.iter().find(|(of, _)| *of == shard).map(|(_, listed)| listed.clone()).unwrap_or_default()
    }

    /// The names in all lists.
    pub fn all(&self) -> ListedNames {
        self.lists.iter().flat_map(|(_, listed)| listed.iter().cloned()).collect()
    }

    /// Removes sstables from all lists, durably, before their files are removed. No other shard
    /// may use the directory.
    pub async fn forget(&mut self, dir: &Path, host: HostId, gone: &[SstablePath]) -> Result<(), EngineError> {
        let gone: ListedNames = gone.iter().map(ListedName::of).collect();
        for (shard, listed) in &mut self.lists {
            if listed.is_disjoint(&gone) {
                continue;
            }
            let left: ListedNames = listed.difference(&gone).cloned().collect();
            write(dir, *shard, &left, host).await?;
            *listed = left;
        }
        Ok(())
    }

    /// Moves the lists of shards from `running` on, which no longer exist, to the list of shard 0.
    /// No other shard may use the directory.
    pub async fn merge_absent(&mut self, dir: &Path, host: HostId, running: u16) -> Result<(), EngineError> {
        let absent: Vec<(ShardId, ListedNames)> = self.lists.extract_if(.., |(shard, _)| shard.0 >= running).collect();
        if absent.is_empty() {
            return Ok(());
        }
        let mut merged = self.of(ShardId(0));
        merged.extend(absent.iter().flat_map(|(_, listed)| listed.iter().cloned()));
        if merged != self.of(ShardId(0)) {
            write(dir, ShardId(0), &merged, host).await?;
        }
        self.lists.retain(|(shard, _)| shard.0 != 0);
        self.lists.push((ShardId(0), merged));
        for (shard, _) in absent {
            let path = self::path(dir, shard);
            match rt::fs::remove_file(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(EngineError::io(path)(error)),
                _ => {}
            }
        }
        rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))
    }

    /// The listed sstables that were truncated.
    pub fn truncated(&self, dir: &Path, filters: &[(ShardId, ReplayFilters)]) -> Vec<SstablePath> {
        let listed = self.all();
        listed.iter().filter_map(|name| name.place(dir)).filter(|place| is_truncated(filters, place)).collect()
    }

    /// The listed sstables that are not among the ones that are there.
    pub fn missing(&self, dir: &Path, there: &[SstablePath]) -> Vec<SstablePath> {
        let there: ListedNames = there.iter().map(ListedName::of).collect();
        self.all().difference(&there).filter_map(|name| name.place(dir)).collect()
    }
}

/// Replaces the list of a shard of the node `host` durably.
pub(crate) async fn write(dir: &Path, shard: ShardId, names: &ListedNames, host: HostId) -> Result<(), EngineError> {
    let path = self::path(dir, shard);
    let written = Written { sstables: names.clone(), owner: FileOwner::of_files_in(dir, host) };
    sealed::write(&path, KIND, FORMAT, &written).await.map_err(EngineError::io(path))
}

async fn read_at(path: &Path, host: HostId) -> io::Result<Result<ListedNames, Unusable>> {
    let read = read_owned(path, host, (KIND, FORMAT), |written: &Written| Some(written.owner)).await?;
    let dir = path.parent().unwrap_or(path);
    Ok(read.and_then(|written| match written.sstables.iter().all(|name| name.place(dir).is_some()) {
        true => Ok(written.sstables),
        false => Err(Unusable { why: "is damaged (a name is not one of an sstable)".into(), is_there: true }),
    }))
}

/// Whether a file with this name lists sstables.
pub(crate) fn is_name_of_list(name: &str) -> bool {
    shard_of_name(name).is_some()
}

/// A copy under a similar name, such as `sstables-00`, is no list.
fn shard_of_name(name: &str) -> Option<ShardId> {
    let shard = name.strip_prefix(PREFIX)?.parse().ok().map(ShardId)?;
    (self::name(shard) == name).then_some(shard)
}

/// The name of the list of a shard.
pub(crate) fn name(shard: ShardId) -> String {
    format!("{PREFIX}{shard}")
}

fn path(dir: &Path, shard: ShardId) -> PathBuf {
    dir.join(name(shard))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sstable::Generation;
    use test_support::Scratch;
    use uuid::Uuid;

    const HOST: HostId = HostId(Uuid::from_u128(1));

    fn names(generations: &[u64]) -> ListedNames {
        generations.iter().map(|number| ListedName(format!("me-{number}"))).collect()
    }

    fn places(dir: &Path, generations: &[u64]) -> Vec<SstablePath> {
        generations.iter().map(|number| SstablePath::new(dir, Generation::from_number(*number))).collect()
    }

    async fn read(dir: &Path) -> SstableLists {
        let files: Vec<String> = rt::fs::read_dir(dir).await.unwrap().into_iter().map(|entry| entry.name).collect();
        SstableLists::read_all(dir, &files, HOST).await.unwrap()
    }

    #[test]
    fn sstable_lists_round_trip() {
        rt::block_on(async {
            let scratch = Scratch::new("sstable-lists");
            let dir: &Path = &scratch;
            write(dir, ShardId(0), &names(&[1, 2]), HOST).await.unwrap();
            write(dir, ShardId(5), &names(&[3]), HOST).await.unwrap();
            let mut lists = read(dir).await;
            assert_eq!((lists.of(ShardId(0)), lists.of(ShardId(5))), (names(&[1, 2]), names(&[3])));
            assert_eq!(lists.missing(dir, &places(dir, &[1, 3, 4])), places(dir, &[2]));
            lists.merge_absent(dir, HOST, 2).await.unwrap();
            assert_eq!(lists.all(), names(&[1, 2, 3]));
            let again = read(dir).await;
            assert_eq!((again.of(ShardId(0)), again.of(ShardId(5))), (names(&[1, 2, 3]), names(&[])));
            lists.forget(dir, HOST, &places(dir, &[1, 9])).await.unwrap();
            assert_eq!((lists.all(), read(dir).await.all()), (names(&[2, 3]), names(&[2, 3])));
        });
    }

    #[test]
    fn copies_under_similar_names_are_no_lists() {
        assert_eq!(shard_of_name("sstables-7"), Some(ShardId(7)));
        for name in ["sstables-07", "sstables-+7", "sstables-7.bak", "sstables-", "sstables-70000", "sstables--1"] {
            assert_eq!(shard_of_name(name), None, "{name}");
        }
    }

    /// Damaged lists, lists of another node, and directories in their place are moved aside.
    #[test]
    fn an_unusable_list_is_moved_aside() {
        rt::block_on(async {
            let scratch = Scratch::new("unusable-list");
            let dir: &Path = &scratch;
            let path = self::path(dir, ShardId(0));
            let put = async |unusable: usize| match unusable {
                0 => rt::fs::write_durably(&path, b"messina").await.unwrap(),
                1 => write(dir, ShardId(0), &names(&[1]), HostId(Uuid::from_u128(2))).await.unwrap(),
                2 => {
                    let bad = [ListedName("../x".into())].into_iter().collect();
                    write(dir, ShardId(0), &bad, HOST).await.unwrap();
                }
                _ => rt::fs::create_dir_all(&path).await.unwrap(),
            };
            for unusable in 0..4 {
                put(unusable).await;
                assert_eq!(read(dir).await.all(), names(&[]), "case {unusable}");
                assert!(!rt::fs::is_there(&path).await.unwrap(), "case {unusable}");
                write(dir, ShardId(0), &names(&[7]), HOST).await.unwrap();
                assert_eq!(read(dir).await.all(), names(&[7]), "case {unusable}");
                rt::fs::remove_file(&path).await.unwrap();
                rt::time::sleep(rt::time::Duration::from_millis(2)).await;
            }
        });
    }
}
