//! Describes this process so that another process on the same machine can check if it still runs. After a crash the
//! next process need not wait for a lease to expire if it can see that the holder has ended.

use std::{fs, path::Path};

/// Returns the description of this process: `pid=4711 started=123456 host=worker-1 boot=… pidns=…`. Words that the
/// system does not provide are missing, and without them no process can check the description.
pub(super) fn this() -> String {
    let pid = std::process::id();
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let words = [
        ("pid", Some(pid.to_string())),
        ("started", started(&pid.to_string())),
        ("host", read("/proc/sys/kernel/hostname").ok()),
        ("boot", read("/proc/sys/kernel/random/boot_id").ok()),
        ("pidns", pid_namespace()),
    ];
    let words = words
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
    words.collect::<Vec<_>>().join(" ")
}

/// True if the process with this description has certainly ended. False if that cannot be seen from here: it ran on
/// another machine, in another container, or before a reboot of an unknown machine.
pub(super) fn has_ended(process: &str) -> bool {
    let here = this();
    let same = |name| word(process, name).is_some() && word(process, name) == word(&here, name);
    // If processes of other users are hidden, the absence of a process proves nothing.
    let sees_all = Path::new("/proc/1/stat").exists();
    if !(same("boot") && same("pidns") && sees_all) {
        return false;
    }
    let (Some(pid), Some(then)) = (word(process, "pid"), word(process, "started")) else {
        return false;
    };
    // The system gives the number of an ended process to a new one.
    pid.parse::<u32>().is_ok() && started(pid).as_deref() != Some(then)
}

fn word<'a>(process: &'a str, name: &str) -> Option<&'a str> {
    let mut words = process.split(' ').filter_map(|word| word.split_once('='));
    words.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns when a process started, in ticks after the boot of the machine; `None` if it has ended.
fn started(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character, so the fields are counted from its end. The first one is the
    // state.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let ended = matches!(state, "Z" | "X");
    (!ended)
        .then(|| fields.nth(18).map(str::to_owned))
        .flatten()
}

/// Returns the id of the namespace of process numbers. Processes of different containers may have the same number.
fn pid_namespace() -> Option<String> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let digits = |c: char| c.is_ascii_digit();
    Some(link.to_str()?.chars().filter(|c| digits(*c)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the description of this process with another value for one word.
    fn but(name: &str, value: &str) -> String {
        let here = this();
        let old = word(&here, name).unwrap().to_owned();
        here.replace(&format!("{name}={old}"), &format!("{name}={value}"))
    }

    #[test]
    fn this_process_has_not_ended() {
        assert!(!has_ended(&this()));
    }

    #[test]
    fn a_process_that_ended_is_seen_to_be_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().to_string();
        child.wait().unwrap();
        assert!(has_ended(&but("pid", &pid)));
    }

    #[test]
    fn a_process_whose_number_another_has_now_is_gone() {
        assert!(has_ended(&but("started", "1")));
    }

    #[test]
    fn nothing_is_known_of_processes_elsewhere() {
        assert!(!has_ended(
            &but("boot", "another").replace("started=", "started=1")
        ));
        assert!(!has_ended(
            &but("pidns", "1").replace("started=", "started=1")
        ));
        assert!(!has_ended("somewhere else"));
        assert!(!has_ended(""));
    }
}
