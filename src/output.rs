//! Standard output of a command. A reader that closes the pipe, as `| head` does, is not an error, and the command
//! continues. Any other write error makes the command fail at its end.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Prints a line as `println!` does, which would panic if it could not write.
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($arguments)*)))
    };
}
pub(crate) use say;

/// Writes to standard output.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let written = out.write_fmt(text).and_then(|()| out.flush());
    let Err(error) = written else {
        return;
    };
    let is_first = error.kind() != ErrorKind::BrokenPipe && !IS_LOST.swap(true, Ordering::Relaxed);
    if is_first {
        // If stderr cannot be written either, only the exit code reports the error.
        let _ = writeln!(
            io::stderr(),
            "provost: cannot write to standard output: {error}"
        );
    }
}

/// Returns the exit code of a command that would otherwise end with `code`.
pub fn exit_code(code: ExitCode) -> ExitCode {
    match IS_LOST.load(Ordering::Relaxed) && code == ExitCode::SUCCESS {
        true => ExitCode::FAILURE,
        false => code,
    }
}
