"""The pods of one job.

- `members`: those that are there, with the counts that decisions need.
- `ended_pods`: those that have ended, which may count as there for those that come again.
- `label_numbers`: how many pods the labels of a job say, where they may disagree.
- `latest_run`: which pods are of an earlier start of their object, and count no longer.
- `start`: with which pods a job has started, so that those which come again are known.
- `surplus`: pods that another job of the same name seems to have.
"""
