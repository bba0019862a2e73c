//! The resources of the host: CPUs, memory, file descriptors.

use std::io;
use std::path::Path;

/// The CPUs that the process may use.
pub fn cpus() -> Vec<usize> {
    crate::machine::affinity()
}

/// The memory that the process may use, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// The memory of the machine.
    pub machine: u64,
    /// The limit of the process's control group, if it is lower.
    pub control_group: Option<u64>,
}

impl MemoryLimit {
    /// The lower one of both.
    pub fn bytes(&self) -> u64 {
        self.control_group.unwrap_or(self.machine)
    }
}

/// The memory that the process may use.
pub fn memory_limit() -> io::Result<MemoryLimit> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal"))?;
    let machine = total << 10;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = control_group_limit(&groups, |file| std::fs::read_to_string(file).ok());
    Ok(MemoryLimit { machine, control_group: limit.filter(|limit| *limit < machine) })
}

/// The lowest limit of the process's control groups and their parents. `groups` is the content of
/// `/proc/self/cgroup`: a line has the number of a hierarchy, its controllers (none in version 2)
/// and the path of the group.
fn control_group_limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers.split(',').find(|one| one.is_empty() || *one == "memory") {
            Some("") => ("/sys/fs/cgroup", "memory.max"),
            Some(_) => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            None => continue,
        };
        let mut path = Path::new(root).join(own.trim_start_matches('/'));
        while path.starts_with(root) {
            let limit = read(&path.join(file)).and_then(|text| text.trim().parse::<u64>().ok());
            least = [least, limit].into_iter().flatten().min();
            path.pop();
        }
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
    fn the_limit_of_a_control_group_is_that_of_it_or_a_parent() {
        let limit = |groups: &str, files: &[(&str, &str)]| {
            let found = |path: &std::path::Path| files.iter().find(|(file, _)| path == std::path::Path::new(file));
            super::control_group_limit(groups, |path| found(path).map(|(_, text)| (*text).to_owned()))
        };
        let second = [("/sys/fs/cgroup/a/memory.max", "700\n"), ("/sys/fs/cgroup/a/b/memory.max", "max\n")];
        assert_eq!(limit("0::/a/b\n", &second), Some(700));
        assert_eq!(limit("0::/\n", &second), None);
        let first = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "230686720\n"),
        ];
        let groups = |path: &str| format!("5:cpu,cpuacct:/x\n4:memory:{path}\n1:name=systemd:/y\n");
        assert_eq!(limit(&groups("/a"), &first), Some(230_686_720));
        assert_eq!(limit(&groups("/a/b"), &first), Some(230_686_720));
        // In a container the path is the host's path, and the root is the container's own group.
        assert_eq!(limit(&groups("/docker/1"), &first[..1]), Some(9_223_372_036_854_771_712));
        assert_eq!(limit("", &first), None);
    }

    #[test]
    fn there_is_something_to_run_on() {
        assert!(!super::cpus().is_empty());
        assert!(super::memory_limit().expect("known").bytes() > 1 << 20);
        let raised = super::raise_open_files().expect("raised");
        assert!(raised > 0 && super::open_files().is_ok_and(|limit| limit == raised));
    }
}
