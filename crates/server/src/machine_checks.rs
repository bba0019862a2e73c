//! Values of the configuration that do not fit the machine: its CPUs, its disk, its files.
//!
//! An error names the key, and the value that the machine allows.

use crate::config::map::{self, MapSetting};
use crate::config::setting::{Setting, Size};
use crate::config::{Config, CpuSet};
use crate::start_error::StartError;
use engine::commitlog::CommitlogConfig;
use rt::host::{MemoryLimit, ThreadLimits};
use rt::tls::TlsError;

/// The CPUs to use, of the CPUs that the process may run on.
pub fn usable_cpus(wanted: Option<&CpuSet>, allowed: Vec<usize>) -> Result<Vec<usize>, StartError> {
    let Some(CpuSet(wanted)) = wanted else { return Ok(allowed) };
    // The system may not say which there are.
    let unusable = wanted.iter().filter(|cpu| !allowed.is_empty() && !allowed.contains(cpu));
    let unusable: Vec<usize> = unusable.copied().collect();
    match unusable.is_empty() {
        true => Ok(wanted.clone()),
        false => Err(StartError(format!(
            "cpuset: this process cannot run on CPU {}. It can run on {}",
            CpuSet(unusable).ranges(),
            CpuSet(allowed).ranges()
        ))),
    }
}

/// Descriptors that a node needs without its shards: for logs, ports, clients and other nodes.
const LEAST_DESCRIPTORS: u64 = 48;
/// Descriptors that each shard needs.
const LEAST_DESCRIPTORS_OF_SHARD: u64 = 12;

/// Refuses fewer descriptors than the node needs to serve a few clients.
pub fn check_descriptors(limit: u64, shards: usize) -> Result<(), StartError> {
    let needed = LEAST_DESCRIPTORS + LEAST_DESCRIPTORS_OF_SHARD * shards as u64;
    if limit >= needed {
        return Ok(());
    }
    let plural = if shards == 1 { "" } else { "s" };
    Err(StartError(format!(
        "this process may open {limit} files (RLIMIT_NOFILE), and a node with {shards} shard{plural} needs at \
         least {needed}. Raise the hard limit (`ulimit -Hn` in a shell, LimitNOFILE in a systemd unit), to \
         65536 or more for production"
    )))
}

/// Threads that a node needs without its shards: for file operations and signals of the first
/// thread, and for the time limit of a stop.
const LEAST_THREADS: usize = 4;
/// Threads that each shard needs: its own, one for file operations, and two of the kernel's
/// io_uring.
const LEAST_THREADS_OF_SHARD: usize = 4;

/// Refuses a process that cannot start the threads that the node needs. `startable` returns how
/// many of a number of threads can be started.
pub fn check_threads(
    shards: usize,
    startable: impl Fn(usize) -> usize,
    limits: impl Fn() -> ThreadLimits,
) -> Result<(), StartError> {
    let needed = LEAST_THREADS + LEAST_THREADS_OF_SHARD * shards;
    let found = startable(needed);
    if found >= needed {
        return Ok(());
    }
    let ThreadLimits { control_group, user } = limits();
    let shown = |limit: Option<u64>| limit.map_or("not limited".to_owned(), |limit| limit.to_string());
    let plural = if shards == 1 { "" } else { "s" };
    Err(StartError(format!(
        "this process can start only {found} more threads, and a node with {shards} shard{plural} needs at least {needed} more. \
         Limits: pids.max of its control group (TasksMax in a systemd unit, --pids-limit of a container): {}; of its user \
         (`ulimit -u`, LimitNPROC in a systemd unit): {}. Raise the one that is reached",
        shown(control_group),
        shown(user)
    )))
}

/// The warning if `memory` is larger than the available memory.
pub fn memory_warning(memory: Option<Size<1>>, limit: MemoryLimit) -> Option<String> {
    let Size(wanted) = memory?;
    (wanted > limit.bytes()).then(|| {
        let source = match limit.control_group {
            Some(_) => "the limit of the process's control group",
            None => "the memory of the machine",
        };
        format!(
            "memory (--memory) is {}, more than {source}: {}. The kernel kills the process when it exceeds the limit. Set memory \
             to less than the limit, or raise the limit",
            Size::<1>(wanted).show(),
            Size::<1>(limit.bytes() >> 20 << 20).show()
        )
    })
}

/// The warning if the commitlogs of all shards need more space than configured.
pub fn log_size_warning(config: &Config, shards: usize) -> Option<String> {
    let Size(total) = config.commitlog_total_space_in_mb?;
    let segment = config.commitlog_segment_size_in_mb;
    let least = CommitlogConfig::least_total_size(segment.0) * shards as u64;
    (total < least).then(|| {
        let plural = if shards == 1 { "" } else { "s" };
        format!(
            "commitlog_total_space_in_mb: {} is not enough for {shards} shard{plural} with segments of {}: the logs take up to {}",
            Size::<1>(total).show(),
            segment.show(),
            Size::<1>(least).show()
        )
    })
}

/// The warning if segments are smaller than configured.
pub fn segment_size_note(wanted: &Config, used: &Config) -> Option<String> {
    let (wanted, used) = (wanted.commitlog_segment_size_in_mb, used.commitlog_segment_size_in_mb);
    (used != wanted).then(|| {
        format!(
            "segments of the commitlog have {} instead of {} (commitlog_segment_size_in_mb): a shard has no more memory, or no more \
             of commitlog_total_space_in_mb. A write of more than half of a segment is refused",
            used.show(),
            wanted.show()
        )
    })
}

/// An error of files that this setting names, with the option of the file.
pub fn tls_error(setting: &str, map: &impl MapSetting) -> impl Fn(TlsError) -> StartError {
    move |error| {
        let place = match &error {
            TlsError::File { file, .. } => map::option_of(setting, map, file),
            TlsError::Unfit { .. } => setting.to_owned(),
        };
        StartError(format!("{place}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_threads_are_refused() {
        let limits = || ThreadLimits { control_group: Some(9), user: None };
        assert!(check_threads(2, |wanted| wanted, || unreachable!()).is_ok());
        let StartError(why) = check_threads(2, |wanted| wanted - 1, limits).expect_err("too few");
        assert!(
            why.starts_with("this process can start only 11 more threads, and a node with 2 shards needs at least 12")
        );
        assert!(
            why.contains("--pids-limit of a container): 9; of its user")
                && why.contains("LimitNPROC in a systemd unit): not")
        );
    }

    #[test]
    fn a_cpu_that_cannot_be_used_is_refused() {
        let set = |cpus: &[usize]| CpuSet(cpus.to_vec());
        let allowed = || vec![0, 1, 2, 3, 6];
        assert_eq!(usable_cpus(None, allowed()).ok(), Some(allowed()));
        assert_eq!(usable_cpus(Some(&set(&[1, 6])), allowed()).ok(), Some(vec![1, 6]));
        assert_eq!(usable_cpus(Some(&set(&[9])), Vec::new()).ok(), Some(vec![9]));
        let StartError(why) = usable_cpus(Some(&set(&[3, 4, 5, 99])), allowed()).expect_err("not there");
        assert_eq!(why, "cpuset: this process cannot run on CPU 4-5,99. It can run on 0-3,6");
    }

    #[test]
    fn too_few_descriptors_are_refused() {
        assert!(check_descriptors(60, 1).is_ok() && check_descriptors(1024, 64).is_ok());
        let StartError(why) = check_descriptors(40, 1).expect_err("too few");
        assert!(why.contains("may open 40 files") && why.contains("1 shard needs at least 60"), "{why}");
        assert!(check_descriptors(1024, 128).is_err());
    }

    #[test]
    fn more_memory_than_there_is_is_warned_of() {
        const MIB: u64 = 1 << 20;
        let limit = |control_group| MemoryLimit { machine: 1024 * MIB, control_group };
        let warning = |wanted: u64, of_group| memory_warning(Some(Size(wanted * MIB)), limit(of_group));
        assert_eq!(memory_warning(None, limit(Some(MIB))), None);
        assert_eq!((warning(1024, None), warning(220, Some(220 * MIB))), (None, None));
        let why = warning(1024, Some(220 * MIB)).expect("too much");
        assert!(why.contains("is 1GiB, more than the limit of the process's control group: 220MiB"), "{why}");
        let why = warning(2048, None).expect("too much");
        assert!(why.contains("is 2GiB, more than the memory of the machine: 1GiB"), "{why}");
    }

    #[test]
    fn logs_that_are_larger_than_wanted_are_warned_of() {
        let with = |total: u64| Config { commitlog_total_space_in_mb: Some(Size(total << 20)), ..Config::default() };
        assert_eq!(log_size_warning(&Config::default(), 64), None);
        assert_eq!(log_size_warning(&with(320), 2), None);
        let warning = log_size_warning(&with(1), 2).expect("too little");
        assert!(warning.contains("1MiB is not enough for 2 shards with segments of 32MiB"), "{warning}");
        assert!(warning.ends_with("take up to 320MiB"), "{warning}");
    }

    #[test]
    fn an_error_of_a_tls_file_names_the_option() {
        let map = |files: &str| <crate::config::encryption::ClientEncryption as Setting>::from_word(files);
        let map = map("enabled=true,certificate=/nowhere/c,keyfile=/nowhere/k").expect("fine");
        let error = map.files().expect("fine").expect("enabled").load().expect_err("no files");
        let StartError(why) = tls_error("client_encryption_options", &map)(error);
        assert!(why.starts_with("client_encryption_options: keyfile: /nowhere/k: No such file"), "{why}");
    }
}
