#!/bin/sh
# A compiler launcher, so that the suite compiles tutti::separate once, though projects that its tests make have it too.
#   once.sh keep KEPT <compiler> <argument>...                            compiles, and notes in KEPT with which flags
#   once.sh take KEPT INCLUDE [INSTALLED] <compiler> <argument>...        takes what was kept, where it is the same
# The same: the flags that count, and headers, in INCLUDE or in INSTALLED, that are those of INCLUDE and have not changed
# since. All else is compiled as it is asked for.
set -e
what=$1
kept=$2
shift 2
include=
installed=
if [ "$what" = take ]; then
  include=$1
  shift
  case $1 in
    */include) installed=$1; shift ;;
  esac
fi

# What decides what is compiled: neither what starts the compiler (ccache, with its settings), nor warnings, nor when GCC
# collects, nor names of files, nor how a folder is named.
flags=$(
  previous=
  starts=yes
  for word in "$@"; do
    case $starts$word in
      yescmake | yes*/cmake | yes-E | yesenv | yes[A-Z]*=* | yesccache | yes*/ccache) continue ;;
    esac
    starts=
    case $previous in
      -o | -c | -MF | -MT | -MQ) previous=$word; continue ;;
    esac
    previous=$word
    case $word in
      -o | -c | -MD | -MF | -MT | -MQ | -W* | --param=ggc-min-heapsize=* | -fvisibility-inlines-hidden | -isystem) continue ;;
    esac
    word=${word#-I}
    if [ -n "$installed" ]; then
      case $word in
        "$installed"*) word=$include${word#"$installed"} ;;
      esac
    fi
    printf '%s\n' "$word"
  done | sort -u
)
object=
source=
listed=
previous=
for word in "$@"; do
  case $previous in
    -o) object=$word ;;
    -c) source=$word ;;
    -MF) listed=$word ;; # what it was made from
  esac
  previous=$word
done

case $source in
  */tutti_separate_[12].cpp) kept=$kept/$(basename "$source" .cpp) ;;
  *) exec "$@" ;;
esac
if [ "$what" = keep ]; then
  "$@"
  mkdir -p "$kept"
  printf '%s\n' "$flags" > "$kept/flags"
  printf '%s\n' "$PWD/$object" > "$kept/object"
  exit
fi
if [ -f "$kept/object" ] && [ "$flags" = "$(cat "$kept/flags")" ]; then
  from=$(cat "$kept/object")
  if [ -f "$from" ] && [ -z "$(find "$include" -type f -newer "$from")" ] &&
     { [ -z "$installed" ] || diff -r "$include/tutti" "$installed/tutti"; }; then
    cp "$from" "$object"
    [ -z "$listed" ] || echo "$object: $source" > "$listed"
    echo "tutti::separate is the one of the suite: flags and headers are the same"
    exit
  fi
fi
echo "tutti::separate is compiled here: the suite's has other flags or headers"
exec "$@"
