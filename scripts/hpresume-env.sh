#!/bin/sh
# What `hpresume env` does, for nodes and containers without Python:
#
#     . /path/to/hpresume-env.sh || exit 1
#
# exports NODE_LIST (plain host names with commas between), MASTER_NODE, MASTER_ADDR,
# MASTER_PORT, NNODES and NODE_RANK of the Slurm step this runs in, as Slurm knows it now.
# NODE_RANK is unset on a host that is none of the nodes; MASTER_PORT is kept where it is set.
# HPRESUME_ENV_TIMEOUT is the longest time to wait for Slurm (15 s). A failure is one line on
# stderr and a status that is not 0. POSIX sh, awk and scontrol; works under `set -eu` and leaves
# nothing else behind: all of it runs in a subshell, whose output is evaluated.

eval "$( (
    set +eu
    LC_ALL=C
    export LC_ALL
    unset IFS SLURM_CLUSTERS

    say() { printf 'hpresume-env.sh: %s\n' "$*" >&2; }
    die() { say "$*"; exit 1; }
    is_number() { case $1 in ('' | *[!0-9]* | ????????????????????*) return 1 ;; esac; }

    # expand EXPRESSION: the host names of n[1-3,5],m, one a line; nothing where it is no node list.
    # The last bracket varies fastest, and leading zeros stay, as in Slurm.
    expand() {
        case $1 in
            ('' | '(null)' | None* | N/A) return ;;
            (*[][,]*) ;;
            (*[!A-Za-z0-9_.-]*) return ;;
            (*) printf '%s\n' "$1"; return ;;
        esac
        awk '
            function fail() { bad = 1 }
            function emit(name) {
                if (name !~ /^[A-Za-z0-9][A-Za-z0-9_.-]*$/ || ++count > 1000000) fail()
                else names[count] = name
            }
            function spread(head, tail,    start, end, body, items, bounds, item, total, parts, low, high, form) {
                start = index(tail, "[")
                if (!start) { emit(head tail); return }
                end = index(tail, "]")
                if (end < start + 2) { fail(); return }
                body = substr(tail, start + 1, end - start - 1)
                head = head substr(tail, 1, start - 1)
                tail = substr(tail, end + 1)
                total = split(body, items, ",")
                for (item = 1; item <= total && !bad; item++) {
                    if (items[item] !~ /^[0-9]+(-[0-9]+)?$/ || length(items[item]) > 31) { fail(); return }
                    parts = split(items[item], bounds, "-")
                    low = bounds[1]; high = bounds[parts]
                    if (high + 0 < low + 0 || high - low > 1000000) { fail(); return }
                    form = "%0" length(low) "d"
                    for (low += 0; low <= high + 0 && !bad; low++) spread(head sprintf(form, low), tail)
                }
            }
            BEGIN {
                part = ""
                for (at = 1; at <= length(ARGV[1]); at++) {
                    letter = substr(ARGV[1], at, 1)
                    if (letter == "[") depth++
                    if (letter == "]") depth--
                    if (letter == "," && !depth) { spread("", part); part = "" } else part = part letter
                }
                spread("", part)
                if (!bad) for (at = 1; at <= count; at++) print names[at]
            }' "$1"
    }

    # fits NODE…: whether these can be the nodes of the step of this task.
    fits() {
        [ $# -gt 0 ] || return 1
        [ -z "$count" ] || [ $# -eq "$count" ] || return 1
        [ -n "$node" ] || return 0
        for name; do [ "$name" != "$node" ] || return 0; done
        return 1
    }

    # seconds_left: until the bound; the clock is read only once something has gone wrong.
    seconds_left() {
        left=$patience
        [ -z "$deadline" ] || left=$((deadline - $(date +%s)))
    }

    # ask WORD…: what `scontrol show WORD…` prints, in $answer. Status 1: Slurm has no such thing;
    # 2: nobody answers. scontrol by itself would try for 20 s.
    ask() {
        why="scontrol is not on PATH"
        command -v scontrol >/dev/null 2>&1 || { trouble=$why; return 2; }
        while :; do
            seconds_left
            if [ "$left" -lt 1 ]; then left=1; elif [ "$left" -gt 5 ]; then left=5; fi
            if command -v timeout >/dev/null 2>&1; then
                answer=$(exec timeout "$left" scontrol -a show "$@" 2>&1 </dev/null)
            else
                answer=$(exec scontrol -a show "$@" 2>&1 </dev/null)
            fi
            status=$?
            [ $status -ne 0 ] || return 0
            why="scontrol show $*: $(printf '%s\n' "$answer" | awk 'NF { last = $0 } END { print last }')"
            case $answer in
                (*' not found'* | *'Invalid job id'* | *'Invalid node name'*) trouble=$why; return 1 ;;
            esac
            spent=0
            case $status:$answer in
                (124:* | 137:*) why="scontrol show $*: no answer within $left s" spent=$left ;;
                (*'Unable to contact'* | *'imed out'* | *'Zero Bytes'* | *'standby mode'* | *' refused'* \
                    | *' reset by peer'* | *' temporarily '* | *'Rate limit'* | *[Mm]unge* \
                    | *'authentication error'* | *ommunication*failure* | *' unreachable'* | *'No route'*) ;;
                (*) trouble=$why; return 2 ;;
            esac
            [ -n "$deadline" ] || deadline=$(($(date +%s) - spent + patience))
            seconds_left
            [ "$left" -gt 1 ] || { trouble=$why; return 2; }
            sleep 1
        done
    }

    # after MARK TEXT: the word behind the first MARK in TEXT; nothing where there is no MARK.
    after() {
        case $2 in (*"$1"*) ;; (*) return ;; esac
        word=${2#*"$1"}
        printf '%s\n' "${word%%[[:space:]]*}"
    }

    job=${SLURM_JOB_ID:-${SLURM_JOBID-}}
    [ -n "$job" ] || die "SLURM_JOB_ID is not set: call this inside a Slurm job, best in its step"
    is_number "$job" || die "SLURM_JOB_ID='$job' is not the number of a job"
    attempt=${HPRESUME_ATTEMPT-}
    [ -z "$attempt" ] || is_number "$attempt" || die "HPRESUME_ATTEMPT='$attempt' is not a number"
    port=${MASTER_PORT-}
    if [ -n "$port" ]; then
        { is_number "$port" && [ "$port" -gt 0 ] && [ "$port" -lt 65536 ]; } ||
            die "MASTER_PORT='$port' is not a port: unset it or take 1 to 65535"
    fi
    patience=${HPRESUME_ENV_TIMEOUT:-15}
    is_number "${patience%%.*}" || die "HPRESUME_ENV_TIMEOUT='$patience' is not a number of seconds"
    patience=${patience%%.*} deadline='' trouble='' answer='' nodes=''
    node=${SLURMD_NODENAME-}
    newline='
'

    # Steps from this number on are the batch script and the like. sbatch inside a step hands that
    # step's variables on to a job that has nothing to do with it; SLURM_NNODES alone is set anew.
    step=${SLURM_STEP_ID:-${SLURM_STEPID-}} count=${SLURM_NNODES-}
    { is_number "$step" && [ "$step" -lt 4294967280 ]; } || step=''
    [ -z "$count" ] || [ "${SLURM_STEP_NUM_NODES:-$count}" = "$count" ] || step=''
    { [ -n "$step" ] && is_number "$count"; } || count=''

    silent=
    if [ -n "$step" ]; then
        # By its full id: for the last task of a job array Slurm would show the steps of all.
        ask step "$job.$step"
        case $? in
            (0) nodes=$(expand "$(after ' NodeList=' "$answer")") ;;
            (2) silent=1 ;;
        esac
        # shellcheck disable=SC2086 # one word a node
        if ! fits $nodes; then
            nodes=$(expand "${SLURM_STEP_NODELIST-}")
            if ! fits $nodes; then
                nodes=
                [ -z "$attempt" ] || nodes=$(expand "${NODE_LIST-}")
                fits $nodes || nodes=
            fi
        fi
    fi
    if [ -z "$nodes" ] && [ -z "$silent" ]; then
        # One record each for the tasks of an array and the parts of a heterogeneous job. The field
        # is looked for at the begin of a line: users write what they like into a job's name.
        if ask job "$job"; then
            record=${newline}$answer
            record=${record#*"${newline}JobId=$job "}
            nodes=$(expand "$(after "${newline}   NodeList=" "$record")")
        else
            silent=1
        fi
    fi
    [ -n "$nodes" ] || die "the nodes are not known: ${trouble:-Slurm lists no nodes for job $job}"

    # shellcheck disable=SC2086 # one word a node
    set -- $nodes
    address=
    if [ -z "$silent" ] && ask node "$1"; then address=$(after ' NodeAddr=' "$answer"); fi
    if [ -z "$address" ] && [ -n "$attempt" ] && [ "${MASTER_NODE-}" = "$1" ]; then
        address=${MASTER_ADDR-}
    fi
    case ${address:=$1} in (*[!A-Za-z0-9_.:%-]*) die "NodeAddr '$address' of $1 is no address" ;; esac

    if [ -z "$port" ]; then
        # The formula of hpresume/slurm/ports.py.
        [ -n "$attempt" ] || { attempt=${SLURM_RESTART_COUNT:-0}; is_number "$attempt" || attempt=0; attempt=$((attempt + 1)); }
        port=$((((job % 9973 * 512 + ${step:-31} % 9973 * 16 + attempt % 9973) % 9973 * 6163) % 9973 + 20000))
    fi

    rank='' at=0 list=''
    for name; do
        list=$list,$name
        [ "$name" != "$node" ] || rank=$at
        at=$((at + 1))
    done
    if [ -z "$node" ] && is_number "${SLURM_NODEID-}" && [ "$SLURM_NODEID" -lt $# ]; then rank=$SLURM_NODEID; fi

    [ -z "$trouble" ] ||
        say "$trouble; going on with $# nodes, master $address"
    printf "export NODE_LIST='%s' MASTER_NODE='%s' MASTER_ADDR='%s' MASTER_PORT='%s' NNODES='%s'\n" \
        "${list#,}" "$1" "$address" "$port" "$#"
    if [ -n "$rank" ]; then printf 'export NODE_RANK=%s\n' "$rank"; else printf 'unset NODE_RANK\n'; fi
) || printf '%s\n' 'unset NODE_LIST MASTER_NODE MASTER_ADDR NNODES NODE_RANK; false')"
