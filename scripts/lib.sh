# shellcheck shell=bash
# What setup, test and demo share: where things are, and how they fail.
#
# Sourced, never run. After `enter` the variable `root` is the tree everything
# is used from. That is the checkout, or a copy of it where the account that
# runs the jobs of a dev cluster cannot get at the checkout.

set -euo pipefail
umask 022
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
job_uid=20001 # the account "trainer" of a dev cluster
# read by the scripts that source this file
# shellcheck disable=SC2034
venv=$root/.venv

say() { printf '%s\n' "${0##*/}: $*" >&2; }
die() {
    say "$@"
    exit 1
}

is_root() { [[ $EUID -eq 0 ]]; }

# Run a command as the account of the jobs, who need not exist yet.
as_job_account() {
    (cd / && setpriv --reuid="$job_uid" --regid="$job_uid" --clear-groups "$@")
}

# Whether the jobs' account can read all it needs of $1, on every node: /tmp and the like are a
# node's own.
reachable() {
    case $1/ in /tmp/* | /run/* | /dev/*) return 1 ;; esac
    local blocked
    blocked=$(as_job_account find "$1"/{hpresume,examples,scripts,spank} \
        -name __pycache__ -prune -o ! -readable -print -quit 2>&1) || return 1
    [[ -z $blocked ]]
}

# Make $2 a copy of the sources in $1: new and changed files arrive, deleted ones go.
copy_sources() {
    local from=$1 to=$2 lists=$2/.work/sources
    mkdir -p "$to" "$lists"
    (cd "$from" && find . \
        \( -type d \( -name '.?*' ! -name .ci -o -name __pycache__ -o -name '*.egg-info' \
        -o -path ./test-results -o -path ./build -o -path ./dist \) -prune \) \
        -o \( -type f -o -type l \) ! -name '*.so' ! -name '*.so.*' ! -name '*.o' ! -name '*.pyc' \
        -print0) |
        LC_ALL=C sort -z >"$lists/new"
    if [[ -e $lists/old ]]; then
        LC_ALL=C comm -z -13 "$lists/new" "$lists/old" | (cd "$to" && xargs -0r rm -f --)
    fi
    tar -C "$from" --null --no-recursion --mode=go=rX,u+rw -T "$lists/new" -cf - |
        tar -C "$to" --no-same-owner -xf -
    mv "$lists/new" "$lists/old"
}

# Go on from a tree that the account of the jobs can read. Call it as: enter "$@"
enter() {
    if ! is_root || reachable "$root"; then
        cd "$root"
        return
    fi
    [[ -z ${HPRESUME_DEVCLUSTER_CHECKOUT:-} ]] || die "user $job_uid cannot read $root"
    local copy
    copy=/var/cache/hpresume/$(basename "$root")-$(printf %s "$root" | sha256sum | cut -c1-8)
    mkdir -p "$copy"
    (
        flock 9
        copy_sources "$root" "$copy"
    ) 9>"$copy.lock"
    say "accounts other than root cannot use $root: working on its copy in $copy"
    export HPRESUME_DEVCLUSTER_CHECKOUT=$root
    exec "$copy/scripts/${0##*/}" "$@"
}
