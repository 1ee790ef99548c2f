//! Which cores run what. Left alone, the kernel puts a server and its one client on one core in one slice and on two in the
//! next, and a call between two cores that sleep takes several times as long.

use fairlock_support::server::Server;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::read_dir;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cores {
    /// The server has one for itself, this program and its workers have the others.
    Apart,
    /// All share one.
    One,
    /// Where the kernel puts it.
    Any,
}

impl Cores {
    /// Of the server and of this program.
    fn sets(self, all: &CpuSet) -> [CpuSet; 2] {
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core));
        let Some(first) = cores.next() else {
            return [*all; 2];
        };
        let mut one = CpuSet::new();
        one.set(first);
        let mut others = *all;
        others.unset(first);
        match self {
            // One core is all there is.
            Self::Apart if others.count() == 0 => [one; 2],
            Self::Apart => [one, others],
            Self::One => [one; 2],
            Self::Any => [*all; 2],
        }
    }
}

/// Whose threads run on which cores from now on.
pub struct Placed {
    all: CpuSet,
    cores: Cores,
}

impl Placed {
    pub fn anywhere() -> Self {
        Self {
            all: sched_getaffinity(None).expect("Linux tells a thread its cores"),
            cores: Cores::Any,
        }
    }

    /// This program, and the workers that it starts from now on.
    pub fn place(&mut self, cores: Cores) {
        self.cores = cores;
        let [_, ours] = cores.sets(&self.all);
        sched_setaffinity(None, &ours).expect("a thread may choose among its cores");
    }

    pub fn place_server(&self, server: &Server) {
        let [cores, _] = self.cores.sets(&self.all);
        let threads = read_dir(format!("/proc/{}/task", server.pid().as_raw_nonzero())).expect("a running server");
        for thread in threads.flatten() {
            let id = thread
                .file_name()
                .to_str()
                .and_then(|id| Pid::from_raw(id.parse().ok()?));
            // A thread may have ended meanwhile.
            let _ = sched_setaffinity(id, &cores);
        }
    }
}

/// A later look at the rows finds all cores again.
impl Drop for Placed {
    fn drop(&mut self) {
        self.place(Cores::Any);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    }

    #[test]
    fn a_server_has_a_core_for_itself_where_there_are_two() {
        let all = set(&[1, 3, 4]);
        assert!(Cores::Apart.sets(&all) == [set(&[1]), set(&[3, 4])]);
        assert!(Cores::One.sets(&all) == [set(&[1]), set(&[1])]);
        assert!(Cores::Any.sets(&all) == [all, all]);
        assert!(Cores::Apart.sets(&set(&[2])) == [set(&[2]), set(&[2])]);
    }

    #[test]
    fn who_looks_again_finds_all_cores() {
        let mut first = Placed::anywhere();
        let all = first.all;
        first.place(Cores::One);
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(first);
        assert!(Placed::anywhere().all == all);
    }
}
