//! The choices that a schedule makes: about runs that overlap, fire times that were missed, and changes of the clock.

use super::words::words;

words! {
    /// Decides about a fire time that comes while a task of the schedule runs. A task runs until it has ended, also
    /// while it needs an operator.
    Overlap {
        /// The new run is left out.
        #[default]
        Skip,
        /// The new run waits for the end of those before it.
        Queue,
        /// The running task is cancelled, and the new run waits for its end. Other runs that wait are left out.
        Replace,
        /// The new run begins beside the running task.
        Allow,
    }
}

words! {
    /// Decides about fire times that were missed because no instance ran.
    CatchUp {
        None,
        /// The last missed fire time fires, unless another fire time has come since.
        #[default]
        Last,
        /// All missed fire times fire, up to [`super::MOST_CAUGHT_UP`].
        All,
    }
}

words! {
    /// Decides about local times around a change of the clock.
    Dst {
        /// A time that the clock jumps over fires later, by the length of the jump. Of a time that comes twice, the
        /// first fires.
        #[default]
        Once,
        /// A time that the clock jumps over does not fire. Of a time that comes twice, the first fires.
        Skip,
        /// A time that the clock jumps over fires later, by the length of the jump. A time that comes twice fires
        /// twice.
        Both,
    }
}
