//! The end of writing: the components that are known only then, and sealing.

use super::Writer;
use super::files::{DataDone, DataFile, IndexFile};
use crate::checksums::{Checksums, PAGE};
use crate::error::Error;
use crate::generation::{Component, Generation, SstablePath};
use crate::large::log_large_data;
use crate::statistics::Statistics;
use crate::statistics::stats::LogInterval;
use bytes::Bytes;
use model::key::DecoratedKey;
use rt::fs::{IoClass, OpenOptions};
use std::io;
use std::path::PathBuf;

/// An sstable that is complete and durable but not sealed.
#[derive(Debug)]
pub struct Unsealed {
    pub(crate) place: SstablePath,
    pub(crate) outcome: Sealed,
}

/// A sealed sstable.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Its directory.
    pub dir: PathBuf,
    /// Its generation.
    pub generation: Generation,
    /// The length of Data.db, in bytes.
    pub data_bytes: u64,
    /// The length of all components, in bytes.
    pub total_bytes: u64,
    /// The number of partitions.
    pub partitions: u64,
    /// The first key.
    pub first: DecoratedKey,
    /// The last key.
    pub last: DecoratedKey,
}

impl Unsealed {
    /// The properties of the sealed sstable.
    pub fn outcome(&self) -> &Sealed {
        &self.outcome
    }

    /// Seals it.
    pub async fn seal(self) -> Result<Sealed, Error> {
        let outcome = self.outcome.clone();
        seal_all(vec![self]).await?;
        Ok(outcome)
    }

    /// Removes the files.
    pub async fn abort(self) {
        crate::directory::remove_files(&self.place).await;
    }
}

/// Seals several sstables, with one sync per directory. On an error some may be sealed.
pub async fn seal_all(all: Vec<Unsealed>) -> Result<Vec<Sealed>, Error> {
    let is_twice = |i: usize| all[..i].iter().any(|other| other.place == all[i].place);
    debug_assert!(!(0..all.len()).any(is_twice), "an sstable is sealed once");
    let mut dirs: Vec<PathBuf> = Vec::new();
    for unsealed in &all {
        let place = &unsealed.place;
        // The names of the other components must be durable before the TOC lists them.
        if !dirs.contains(&place.dir) {
            rt::fs::sync_dir(&place.dir).await.map_err(Error::io(&place.dir))?;
            dirs.push(place.dir.clone());
        }
    }
    for unsealed in &all {
        let place = &unsealed.place;
        let temporary = place.path(Component::TemporaryToc);
        rt::fs::rename(&temporary, &place.path(Component::Toc)).await.map_err(Error::io(&temporary))?;
    }
    for dir in &dirs {
        rt::fs::sync_dir(dir).await.map_err(Error::io(dir))?;
    }
    Ok(all.into_iter().map(|unsealed| unsealed.outcome).collect())
}

/// A copy that does not keep the buffer of rows that the key is in.
fn alone(key: &DecoratedKey) -> DecoratedKey {
    DecoratedKey { token: key.token, key: Bytes::copy_from_slice(&key.key) }
}

/// Creates a file with these bytes, and syncs it.
pub(crate) async fn write_synced(path: PathBuf, bytes: Vec<u8>, class: IoClass) -> Result<(), Error> {
    write(path, OpenOptions::create_new(), bytes, class).await
}

/// Replaces the contents of a file with these bytes, and syncs it.
pub(crate) async fn write_over(path: PathBuf, bytes: Vec<u8>, class: IoClass) -> Result<(), Error> {
    let options = OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() };
    write(path, options, bytes, class).await
}

async fn write(path: PathBuf, options: OpenOptions, bytes: Vec<u8>, class: IoClass) -> Result<(), Error> {
    let written = async {
        let file = rt::fs::open(&path, &options).await?;
        file.write_at(0, bytes, class).await?;
        file.sync_all().await
    };
    written.await.map_err(Error::io(&path))
}

/// The contents of TOC.txt. `small` has the names of the components between Index.db and
/// Checksums.db.
pub(crate) fn toc_text<'a>(small: impl Iterator<Item = &'a str>) -> String {
    let (first, last) = ([Component::Data, Component::Index], [Component::Checksums, Component::Toc]);
    let names = first.iter().map(|component| component.name()).chain(small);
    names.chain(last.iter().map(|component| component.name())).map(|name| format!("{name}\n")).collect()
}

/// The error if the task that writes a file was aborted.
fn aborted(path: PathBuf, why: &impl ToString) -> Error {
    Error::Io { path, source: io::Error::other(why.to_string()) }
}

/// Writes and syncs the remaining components.
pub(super) async fn components(writer: Writer, intervals: &[LogInterval]) -> Result<Unsealed, Error> {
    let Writer {
        place,
        schema,
        options,
        data,
        index,
        summary,
        filter,
        sketch,
        collector,
        large,
        form,
        first,
        last,
        partitions,
        ..
    } = writer;
    let (Some((header, _)), Some(first), Some(last)) = (form, first, last) else {
        unreachable!("an sstable without partitions is not finished")
    };
    let (data, (index_length, index_pages)) = finish_streams(&place, data, index).await?;
    let mut stats = collector.finish();
    debug_assert_eq!(stats.partition_sizes.count(), partitions, "each partition is counted once");
    stats.level = options.level;
    stats.host_id = Some(options.host_id);
    stats.log_intervals = intervals.to_vec();
    stats.compression_ratio = match options.compression {
        Some(_) => data.stored_length as f64 / data.content_length.max(1) as f64,
        None => -1.0,
    };
    let companion = if options.compression.is_some() { Component::CompressionInfo } else { Component::Crc };
    let mut files = vec![
        (Component::Summary, summary.finish(&last.key)),
        (Component::Statistics, Statistics::write(&stats, &header, options.bloom_fp_chance, &sketch)),
        (companion, data.companion),
        (Component::Digest, data.digest.to_string().into_bytes()),
    ];
    if let Some(filter) = filter {
        files.push((Component::Filter, filter.finish().write()));
    }
    if let Some(large) = large.finish() {
        log_large_data(&large, &schema, &place);
        files.push((Component::LargeData, large.write()));
    }
    let data_length = data.stored_length;
    let checksums = Checksums { data_length, index_length, index_pages, files: Vec::new(), data: data.sums };
    add_lists(&mut files, checksums);
    let small: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    write_components(&place, files, options.class).await?;
    let outcome = Sealed {
        dir: place.dir.clone(),
        generation: place.generation,
        data_bytes: data_length,
        total_bytes: data_length + index_length + small,
        partitions,
        first: alone(&first),
        last: alone(&last),
    };
    Ok(Unsealed { place, outcome })
}

/// Stores the rest of Data.db and of Index.db, and syncs them. Returns the length of Index.db and
/// the checksums of its pages, too.
async fn finish_streams(
    place: &SstablePath,
    data: DataFile,
    index: IndexFile,
) -> Result<(DataDone, (u64, Vec<u32>)), Error> {
    let index = rt::task::spawn(index.finish());
    let data = data.finish().await;
    // Waits in any case, so that nothing is written any more when the files are removed after an
    // error.
    let index = index.await.unwrap_or_else(|ended| Err(aborted(place.path(Component::Index), &ended)));
    let (data, (index_length, index_pages)) = (data?, index?);
    debug_assert_eq!(index_pages.len() as u64, index_length.div_ceil(PAGE as u64), "each page has a checksum");
    debug_assert!(data.content_length > 0 && index_length > 0, "an sstable has partitions");
    Ok((data, (index_length, index_pages)))
}

/// Adds the components that list the others: TOC.txt, and Checksums.db with the checksums of
/// `files`.
fn add_lists(files: &mut Vec<(Component, Vec<u8>)>, checksums: Checksums) {
    let toc = toc_text(files.iter().map(|(component, _)| component.name()));
    files.push((Component::Toc, toc.into_bytes()));
    let entries = files.iter().map(|(component, bytes)| Checksums::entry(*component, bytes)).collect();
    files.push((Component::Checksums, Checksums { files: entries, ..checksums }.write()));
}

/// Writes and syncs components, in parallel.
async fn write_components(place: &SstablePath, files: Vec<(Component, Vec<u8>)>, class: IoClass) -> Result<(), Error> {
    let writes: Vec<_> = files
        .into_iter()
        .map(|(component, bytes)| {
            let is_toc = component == Component::Toc;
            let path = place.path(if is_toc { Component::TemporaryToc } else { component });
            let write = path.clone();
            let writing = rt::task::spawn(async move {
                match is_toc {
                    true => write_over(write, bytes, class).await,
                    false => write_synced(write, bytes, class).await,
                }
            });
            (path, writing)
        })
        .collect();
    // Waits for all writes, so that nothing is written any more when the files are removed after an
    // error.
    let mut result = Ok(());
    for (path, writing) in writes {
        let one = writing.await.unwrap_or_else(|ended| Err(aborted(path, &ended)));
        result = result.and(one);
    }
    result
}
