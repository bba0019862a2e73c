//! The resources of the host: CPUs, memory, file descriptors.

use std::io;

/// The CPUs that the process may use.
pub fn cpus() -> Vec<usize> {
    crate::machine::affinity()
}

/// The bytes of memory that the process may use: the host's memory, or the limit of its control
/// group if that is lower.
pub fn memory_limit() -> io::Result<u64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal"))?;
    Ok(control_group_limit().map_or(total << 10, |limit| limit.min(total << 10)))
}

/// The lowest limit of the process's control group (version 2) and its parents.
fn control_group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut path = std::path::PathBuf::from("/sys/fs/cgroup").join(own.trim_start_matches('/'));
    let mut least = None;
    while path.starts_with("/sys/fs/cgroup") {
        let limit =
            std::fs::read_to_string(path.join("memory.max")).ok().and_then(|text| text.trim().parse::<u64>().ok());
        least = [least, limit].into_iter().flatten().min();
        path.pop();
    }
    least
}

/// The maximum number of open files of the process.
#[allow(unsafe_code)]
pub fn open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the one structure that we give.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

/// Raises the maximum number of open files to the hard limit. Returns the new limit.
#[allow(unsafe_code)]
pub fn raise_open_files() -> io::Result<u64> {
    // SAFETY: both calls read or write the one structure that we give.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(limit.rlim_cur)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_something_to_run_on() {
        assert!(!super::cpus().is_empty());
        assert!(super::memory_limit().expect("known") > 1 << 20);
        let raised = super::raise_open_files().expect("raised");
        assert!(raised > 0 && super::open_files().is_ok_and(|limit| limit == raised));
    }
}
